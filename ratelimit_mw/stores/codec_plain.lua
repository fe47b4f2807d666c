-- After codec_packed, for a client that makes text of what it reads: what is packed is no text.

function reply(list)
  return list
end

function decision(...)
  return { ... }
end
