# Settings of microsoft/Megatron-DeepSpeed examples_deepspeed/MoE/ds_pretrain_gpt_350M_dense.sh
DIR=`pwd`
LENGTH=2048
BATCH=256
LR=3.0e-4
TOKENS=300000000000
SAMPLES=$(( ${TOKENS} * 3 / ${LENGTH} ))
MP_SIZE=1
NUM_GPUS=8
EP_SIZE=1
if [[ $EP_SIZE -gt $NUM_GPUS ]]; then
    EP_PARALLEL_SIZE=$NUM_GPUS
else
    EP_PARALLEL_SIZE=$EP_SIZE
fi
CL_ENABLED="false"
CL_AVG=$(( (80 + ${LENGTH}) / 2 ))
ACTIVATION_CHECKPOINT="true"
NAME="gpt-lr-${LR}"
if [[ $EP_SIZE -gt 1 ]]; then
    NAME="${NAME}-ep-${EP_SIZE}"
fi
data_options=" \
         --vocab-file vocab.json \
         --merge-file merges.txt --data-path enwik8 --data-impl mmap"

megatron_options=" \
        --override-opt_param-scheduler --adam-beta1 0.9 --adam-beta2 0.95 \
        --tensor-model-parallel-size ${MP_SIZE} \
        --moe-expert-parallel-size ${EP_PARALLEL_SIZE} --num-experts ${EP_SIZE} \
        --moe-loss-coeff 0.01 --moe-train-capacity-factor 1.0 --moe-eval-capacity-factor 1.0 \
        --moe-min-capacity 4 --init-method-std 0.014 --lr-decay-tokens 260000000000 \
        --lr-warmup-tokens 375000000 --micro-batch-size 4 --exit-duration-in-mins 30000000 \
        --global-batch-size ${BATCH} --num-layers 24 --hidden-size 1024 \
        --num-attention-heads 16 --seq-length ${LENGTH} --max-position-embeddings ${LENGTH} \
        --train-tokens ${TOKENS} --train-samples ${SAMPLES} --lr ${LR} --min-lr 3.0e-5 \
        --lr-decay-style cosine --split 98,2,0 --log-interval 10 --eval-interval 100 \
        --eval-iters 10 --save-interval 1000 --weight-decay 0.1 --clip-grad 1.0 \
        --hysteresis 2 --num-workers 0 --fp16 --load out --save out \
        --tensorboard-queue-size 1 --log-timers-to-tensorboard --log-batch-size-to-tensorboard \
        --log-validation-ppl-to-tensorboard --tensorboard-dir out"

if [ "${ACTIVATION_CHECKPOINT}" = "true" ]; then
megatron_options="${megatron_options} \
        --checkpoint-activations"
fi

template_json="ds_config_gpt_TEMPLATE.json"
config_json="ds_config_gpt_${NAME}.json"
sed "s/CONFIG_BATCH_SIZE/${BATCH}/" ${template_json} \
    | sed "s/ZERO_STAGE/0/" \
	  > ${config_json}

deepspeed_options=" \
		    --deepspeed \
		    --deepspeed_config ${config_json} \
		    --pipeline-model-parallel-size 1"

if [ "${ACTIVATION_CHECKPOINT}" = "true" ]; then
deepspeed_options="${deepspeed_options} \
        --deepspeed-activation-checkpointing"
fi

run_cmd="deepspeed ${DIR}/../../pretrain_gpt.py ${megatron_options} ${data_options} ${deepspeed_options} &> out/${NAME}.log"
echo ${run_cmd}
eval ${run_cmd}
set +x
