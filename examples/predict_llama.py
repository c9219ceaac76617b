"""Makes one forecast in ten lines: Llama 3 8B on four DGX H100 machines."""

from traincast import predict

forecast = predict("llama3-8b", cluster="dgx-h100:4", strategy="dp=8,tp=4", global_batch=256, use_cache=True)
report = forecast.report

print(f"step {report.step_s:.2f} s, between {report.low_s:.2f} and {report.high_s:.2f} s")
print(f"{report.tokens_per_s:,.0f} tokens/s at an MFU of {report.mfu:.0%}")
print(f"{report.peak_memory_bytes / 2**30:.1f} GiB per device, {'fits' if report.fits else 'does not fit'}")
