"""reports/torch.md and reports/gpu: real torch runs against predictions."""
