"""What people run: plan, verify, records, reference, status, regress, report, paper."""
