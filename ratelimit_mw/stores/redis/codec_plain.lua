-- Replies of the protocol's own. After codec_text; and after codec_packed for a client that makes text of what it reads:
-- what is packed is no text.

function reply(list)
  return list
end

function decision(...)
  return { ... }
end
