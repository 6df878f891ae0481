"""What writes the documents, or parts of them, that repeat facts from code."""
