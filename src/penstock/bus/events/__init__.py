"""Events: their envelope, their ids and names, and their bytes."""
