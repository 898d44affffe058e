GPUS_PER_NODE=8
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes 1 pretrain_bert.py \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 512 --max-position-embeddings 512 \
    --tokenizer-type BertWordPieceLowerCase \
    --micro-batch-size 4 --global-batch-size 32 --fp16 \
    --lr 0.0001 --clip-grad 1.0 --data-path $1 --split 949,50,1
