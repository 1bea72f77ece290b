"""The paper's claims, judged by numbers."""
