"""From source to evidence to reward: build, verify, time, count, model, diagnose, guard."""
