"""What only a GPU can show: speed and memory of real steps, and that both layer backends compute the same."""
