"""The configurations of streams and consumers, and the rules for them."""
