"""Recipes of fine-tuning.

accelerate, axolotl, llamafactory, ms_swift    around Hugging Face's Trainer: ``trainer``
torchtune, xtuner                              trainers of their own
"""
