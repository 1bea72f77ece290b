"""The paper's claims and errata, judged by numbers."""
