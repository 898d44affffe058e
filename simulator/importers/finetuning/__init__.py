"""Recipes of fine-tuning.

trainer                 what TrainingArguments mean; files of them, of axolotl, of LLaMA-Factory
sharding                what their data-parallel ranks shard
accelerate, ms_swift    others around Hugging Face's Trainer
torchtune, xtuner,
automodel               trainers of their own
"""
