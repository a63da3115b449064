"""Dead letters: messages whose attempts are used up."""
