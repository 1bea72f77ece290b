"""SQuAD: appendix on question answering."""
