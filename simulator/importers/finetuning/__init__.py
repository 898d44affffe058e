"""Recipes of fine-tuning.

trainer                 what TrainingArguments mean; files of them, of axolotl, of LLaMA-Factory
llamafactory_v1         settings of LLaMA-Factory's version 1, as they were called before
sharding                what their data-parallel ranks shard
accelerate, ms_swift    others around Hugging Face's Trainer
torchtune, xtuner,
automodel               trainers of their own
"""
