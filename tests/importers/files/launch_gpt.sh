#!/bin/bash
# A script in the old manner: options in strings, joined on the launch line.
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE * $NNODES))
OUT=${1:-out}
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_port 6000"
GPT_ARGS="
    --num-layers 24 \
    --hidden-size 2048 \
    --num-attention-heads 16 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --micro-batch-size 4 \
    --global-batch-size 256 \
    --lr 2.0e-4 \
    --train-iters 1000 \
    --fp16
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 4 \
    $GPT_ARGS \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
    --data-path $DATA_PATH \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --save $OUT/ckpt 2>&1 | tee $OUT/log
