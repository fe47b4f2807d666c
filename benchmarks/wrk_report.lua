-- What wrk found, as the last line that it prints.
done = function(summary)
  local errors = summary.errors
  io.write(string.format('{"microseconds": %d, "requests": %d, "refused": %d, "failed": %d}\n', summary.duration,
    summary.requests, errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
