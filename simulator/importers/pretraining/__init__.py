"""Configurations of pretraining: GPT-NeoX, nanotron, llm-foundry and MaxText, a file each."""
