# Settings of NVIDIA/Megatron-LM examples/mixtral/train_mixtral_8x7b_distributed.sh (a small one)
GPUS_PER_NODE=2
NNODES=${SLURM_NNODES:-"1"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
LAUNCHER=(--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank ${RANK:-"0"})
MODEL=(
    --use-mcore-models --disable-bias-linear --seq-length 256 --max-position-embeddings 2048
    --num-layers 2 --hidden-size 256 --ffn-hidden-size 896 --num-attention-heads 2
    --init-method-std 0.01 --attention-dropout 0.0 --hidden-dropout 0.0 --normalization RMSNorm
    --position-embedding-type rope --swiglu --untie-embeddings-and-output-weights
    --group-query-attention --num-query-groups 2 --no-masked-softmax-fusion
    --no-position-embedding --rotary-base 1000000
)
EXPERTS=(
    --num-experts 2 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-2
#    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce
)
DATA=(
    --tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model --mock-data
    #--data-path $DATA_PATH
    --split 99990,8,2
)
TRAINING=(--micro-batch-size 1 --global-batch-size 4 --lr 1e-4 --train-iters 7 --min-lr 1.0e-5
    --weight-decay 0.1
    # --lr-warmup-iters 500
    --clip-grad 1.0
    # --bf16
)
PARALLEL=(--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1
    --expert-model-parallel-size 2 --use-distributed-optimizer --sequence-parallel)
OUTPUT=(
  #  --log-interval 1 \
   # --save-interval 10000 \
    --eval-iters 10 \
    #--save $CHECKPOINT_PATH \
    --no-load-optim \
    --no-load-rng
)
if [ -n "${WANDB_API_KEY}" ]; then
    OUTPUT+=(--wandb-project ${WANDB_PROJECT:-"Mixtral"})
fi
torchrun ${LAUNCHER[@]} pretrain_gpt.py ${MODEL[@]} ${EXPERTS[@]} ${DATA[@]} \
    ${TRAINING[@]} ${PARALLEL[@]} ${OUTPUT[@]}
