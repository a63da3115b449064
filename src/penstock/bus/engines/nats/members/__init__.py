"""The processes of one service that share its keys: slots, and who leads and follows."""
