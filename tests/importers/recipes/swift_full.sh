# 8 x 80 GiB
NPROC_PER_NODE=8 \
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
swift sft \
    --model Qwen/Qwen2.5-32B \
    --train_type full \
    --dataset 'somebody/reasoning' \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size 1 \
    --learning_rate 1e-5 \
    --gradient_accumulation_steps 2 \
    --packing true \
    --max_length 8192 \
    --save_steps 200 \
    --deepspeed zero3 \
    --attn_impl flash_attn
