"""From evaluated runs to the paper's tables and figures. No torch in here."""
