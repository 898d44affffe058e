"""Recipes of fine-tuning.

trainer                 what TrainingArguments mean, under anyone's names
sharding                what their data-parallel ranks shard
trainer_files           files of TrainingArguments, of axolotl and of LLaMA-Factory
accelerate, ms_swift    others around Hugging Face's Trainer
torchtune, xtuner       trainers of their own
"""
