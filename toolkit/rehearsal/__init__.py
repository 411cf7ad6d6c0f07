"""What is tried before the first step, because it would fail, or be wrong without a word, hours later."""
