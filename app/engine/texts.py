r"""``POST /reprise/text``: the text that vLLM makes of given output tokens, by its own incremental detokenizer.

It puts no work on the engine and runs beside anything. The tokens are fed one at a time, as the engine would deliver
them, so that characters of several tokens, special tokens and stop strings come out as in an answer of vLLM's.

    {"prompt": [1], "ids": [2, 3, 4], "skip_special_tokens": true, "spaces_between_special_tokens": true,
     "stop": ["\n"], "include_stop_str_in_output": false, "min_tokens": 0, "ended": false, "decode": [[4, 7]]}
    {"text": "Hi", "ends": [1, 2, 2], "stop": {"index": 2, "string": "\n"}, "decoded": [["\n", "!"]]}
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from app.asgi import Receive, Scope, Send
from app.engine.asgi import Refusal, send_json
from app.engine.body import read_whole
from app.engine.members import Members
from app.engine.model import Limits
from app.errors import DeterminismUnavailable, InvalidRequest, RepriseError

TEXT_PATH: Final = "/reprise/text"

_SLICE: Final = 256
"""Tokens between two looks at the other requests of this process."""


@dataclass(frozen=True, slots=True)
class TextRequest:
    """What a gateway asks: ``ids`` after ``prompt``, and what the caller said of the text.

    ``ended``: the last id is an end token, which vLLM does not show. ``decode`` are alternatives at the last places of
    ``ids``, one list for each, whose own texts are wanted as vLLM's logprobs name them.
    """

    prompt: list[int]
    ids: list[int]
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    stop: list[str]
    include_stop_str_in_output: bool
    min_tokens: int
    ended: bool
    decode: list[list[int]]

    @classmethod
    def read(cls, body: bytes, limits: Limits) -> "TextRequest":
        """From JSON; raises InvalidRequest naming the member."""
        members = Members(body)
        asked = cls(
            prompt=members.tokens("prompt", limits.vocabulary),
            ids=members.tokens("ids", limits.vocabulary),
            skip_special_tokens=members.flag("skip_special_tokens"),
            spaces_between_special_tokens=members.flag("spaces_between_special_tokens"),
            stop=members.texts("stop"),
            include_stop_str_in_output=members.flag("include_stop_str_in_output"),
            min_tokens=members.whole("min_tokens", 0, 2**31 - 1),
            ended=members.flag("ended"),
            decode=members.token_lists("decode", limits.vocabulary),
        )
        members.end()
        if asked.ended and not asked.ids:
            raise InvalidRequest("'ended' must be false without ids", param="ended")
        if len(asked.decode) > len(asked.ids):
            raise InvalidRequest("'decode' must have no more lists than there are ids", param="decode")
        return asked


async def texts(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI; raises ClientLeftError."""
    state, body = scope["app"].state, await read_whole(receive)
    try:
        answer = await text_of(TextRequest.read(body, Limits.of(state)), state)
    except RepriseError as error:
        await Refusal.of(error).send(send)
    else:
        await send_json(send, 200, answer)


async def text_of(asked: TextRequest, state: Any) -> dict[str, Any]:  # noqa: ANN401 - vLLM's app.state
    """The answer; raises DeterminismUnavailable where this vLLM has no such detokenizer."""
    detokenizer, ends, decoded = _detokenizer(asked, state), list[int](), await _decoded(asked, state)
    for index, token in enumerate(asked.ids):
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        last = asked.ended and index == len(asked.ids) - 1
        string = detokenizer.update([token], last)
        ends.append(len(detokenizer.output_text))
        if string is not None:
            return _answer(detokenizer.output_text, ends, {"index": index, "string": string}, decoded)
    return _answer(detokenizer.output_text, ends, None, decoded)


def _answer(
    text: str, ends: Sequence[int], stop: dict[str, Any] | None, decoded: Sequence[Sequence[str]]
) -> dict[str, Any]:
    # A stop string may have begun in an earlier token, whose text is then cut too.
    return {"text": text, "ends": [min(end, len(text)) for end in ends], "stop": stop, "decoded": decoded}


async def _decoded(asked: TextRequest, state: Any) -> list[list[str]]:  # noqa: ANN401 - vLLM's app.state
    """Each alternative by itself, as vLLM's logprobs name it.

    One that ends in half a character takes the tokens before it for context.
    """
    if not asked.decode:
        return []
    try:
        from vllm.tokenizers.detokenizer_utils import (  # noqa: PLC0415 - present in the engine's environment only
            convert_ids_list_to_tokens,
        )
        from vllm.v1.engine.logprobs import LogprobsProcessor  # noqa: PLC0415 - as above

        tokenizer = state.engine_client.renderer.tokenizer
        # Its method needs nothing of it but the tokenizer.
        verify = LogprobsProcessor._verify_tokens  # noqa: SLF001 - vLLM has no other way to it
        correct = LogprobsProcessor._correct_decoded_token  # noqa: SLF001 - as above
    except (ImportError, AttributeError) as exc:
        raise DeterminismUnavailable(f"this engine's logprobs are not where they are expected: {exc}") from exc
    processor = SimpleNamespace(tokenizer=tokenizer)
    processor._correct_decoded_token = lambda *arguments: correct(processor, *arguments)  # noqa: SLF001 - as above
    found = []
    for place, ids in enumerate(asked.decode, len(asked.ids) - len(asked.decode)):
        if not place % _SLICE:
            await asyncio.sleep(0)
        found.append(verify(processor, convert_ids_list_to_tokens(tokenizer, ids), ids, asked.ids[:place]))
    return found


def _detokenizer(asked: TextRequest, state: Any) -> Any:  # noqa: ANN401 - vLLM's types
    try:
        from vllm import SamplingParams  # noqa: PLC0415 - present in the engine's environment only
        from vllm.v1.engine.detokenizer import IncrementalDetokenizer  # noqa: PLC0415 - as above

        tokenizer = state.engine_client.renderer.tokenizer
    except (ImportError, AttributeError) as exc:
        raise DeterminismUnavailable(f"this engine's detokenizer is not where it is expected: {exc}") from exc
    if tokenizer is None:
        raise DeterminismUnavailable("this engine has no tokenizer")
    params = SamplingParams(
        max_tokens=None,
        stop=asked.stop,
        min_tokens=asked.min_tokens,
        include_stop_str_in_output=asked.include_stop_str_in_output,
        skip_special_tokens=asked.skip_special_tokens,
        spaces_between_special_tokens=asked.spaces_between_special_tokens,
    )
    request = SimpleNamespace(
        request_id="reprise-text", prompt_token_ids=asked.prompt, prompt_embeds=None, sampling_params=params
    )
    return IncrementalDetokenizer.from_new_request(tokenizer, request)
