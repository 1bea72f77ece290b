"""What people run: plan, verify, records, reference, status, regress, sentinels, report, paper."""
