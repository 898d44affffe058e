nproc_per_node=2
CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file fsdp_offload.json swift/cli/sft.py \
    --model Qwen/Qwen2.5-7B-Instruct \
    --train_type lora \
    --quant_bits 4 \
    --bnb_4bit_compute_dtype bfloat16 \
    --per_device_train_batch_size 1 \
    --max_length 2048 \
    --lora_rank 8 \
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) \
    --model_author me
