export NNODES=2
export GPUS_PER_NODE=8
python3 -m MaxText.train MaxText/configs/base.yml run_name=trial hardware=gpu \
    model_name=llama2-7b per_device_batch_size=2 max_target_length=4096 \
    ici_fsdp_parallelism=8 dcn_data_parallelism=2 remat_policy=minimal_flash \
    attention=cudnn_flash_te dataset_type=synthetic steps=20
