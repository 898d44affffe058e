#!/bin/bash
# A script in today's manner: options in arrays, some of them chosen by conditions.
PRECISION=${PRECISION:-fp8}
EP=8
DISTRIBUTED=(
    --nproc-per-node 8
    --nnodes "${NODES:-8}"
)
MODEL=(
    --use-mcore-models
    --num-layers 32           # as Mixtral has
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 4096
    --max-position-embeddings 32768
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --tokenizer-type Llama2Tokenizer
    #--qk-layernorm
)
EXPERTS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --moe-aux-loss-coeff 1e-2
    --expert-model-parallel-size $EP
    --expert-tensor-parallel-size 1
)
TRAINING=(--micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 500 --bf16)
PARALLEL=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 4
    --num-layers-per-virtual-pipeline-stage 4
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
if [[ "$PRECISION" == "fp8" ]]; then
    TRAINING+=("--fp8-format hybrid" "--fp8-amax-history-len 1024")
elif [ "$PRECISION" = mxfp8 ]; then
    TRAINING+=(--fp8-format e4m3 --fp8-recipe mxfp8)
fi
case $EP in
    1|2|4) EXPERTS+=(--moe-router-load-balancing-type none) ;;
    *)
        EXPERTS+=(--moe-router-load-balancing-type aux_loss)
        ;;
esac
torchrun "${DISTRIBUTED[@]}" pretrain_gpt.py \
    "${MODEL[@]}" ${EXPERTS[@]} ${TRAINING[@]} "${PARALLEL[@]}" \
    --log-interval 10 --save "$CHECKPOINTS"
