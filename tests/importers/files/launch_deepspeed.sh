#!/bin/bash
# A script of Megatron-DeepSpeed, which writes the other configuration itself.
ZERO=1
MICRO=2
CONFIG=ds_config_z$ZERO.json
cat <<EOT > $CONFIG
{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": $MICRO,
  "zero_optimization": {"stage": $ZERO, "offload_optimizer": {"device": "none"}},
  "fp16": {"enabled": true}
}
EOT
args=" --deepspeed"
args=" --deepspeed_config=$CONFIG --zero-stage=$ZERO ${args}"
deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py \
    --tensor-model-parallel-size 4 --num-layers 12 --hidden-size 1024 \
    --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size $MICRO --global-batch-size 64 --fp16 \
    --deepspeed-activation-checkpointing $args
