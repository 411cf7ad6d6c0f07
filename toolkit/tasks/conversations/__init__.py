"""What supervised fine-tuning and preference optimisation share: messages, chat templates, models that reply."""
