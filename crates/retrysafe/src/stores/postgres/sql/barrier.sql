UPDATE retrysafe.barrier SET at = retrysafe.now_ms()
