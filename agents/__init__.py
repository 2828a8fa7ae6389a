"""RL agents on numpy, torch and gymnasium; they know nothing of teachers, labels or Django."""
