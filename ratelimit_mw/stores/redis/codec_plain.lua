-- Encodes replies as RESP lists. Used after codec_text, and after codec_packed for a client that decodes replies to
-- text: such a client cannot read msgpack.

function reply(list)
  return list
end

function decision(...)
  return { ... }
end
