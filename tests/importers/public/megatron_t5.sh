# Settings of NVIDIA/Megatron-LM examples/t5/train_t5_220m_distributed.sh
LAUNCHER="--nproc_per_node 8 --nnodes 1"
MODEL="
    --encoder-num-layers 12 \
    --decoder-num-layers 12 \
    --hidden-size 768 --num-attention-heads 12 --kv-channels 64 --ffn-hidden-size 3072 \
    --encoder-seq-length 512 --decoder-seq-length 128 --max-position-embeddings 512 \
    --micro-batch-size 64 --global-batch-size 512 --lr 0.0001 --train-iters 1000000 --bf16 \
"
torchrun $LAUNCHER examples/classes/pretrain_t5.py \
    $MODEL \
    --distributed-backend nccl
