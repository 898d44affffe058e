"""Commands about one training step."""
