"""From a rollout to a reward: queries, labels, reward predictor and the training loop around them."""
