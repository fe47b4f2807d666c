-- Decides charges on a limit with a quota of 0, whatever its algorithm: computes what `_decide_closed` in core/limit.py
-- computes. It has no state. Number of the limit: window (us).

if decide.closed then
  function decide.closed(_, now, cost, _, window)
    local allowed = cost == 0
    return nil, nil, allowed and 1 or 0, 0, 0, allowed and 0 or -1, window, 0, 0, now
  end

  if settle then
    function settle.closed()
      return nil
    end
  end
end
