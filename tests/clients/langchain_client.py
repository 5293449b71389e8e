"""Run by test_clients.py in the clients' own environment: LangChain against a server; prints what it got as JSON."""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Ask whole, streamed, and for a structured answer."""
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="smol", temperature=0, max_tokens=60)
    whole = model.invoke("Say hello.")
    streamed = "".join(str(chunk.content) for chunk in model.stream("Say hello."))
    schema = {
        "title": "City",
        "type": "object",
        "properties": {"name": {"enum": ["Paris", "Rome"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    structured = model.with_structured_output(schema, method="json_schema").invoke("Which city?")
    called = model.bind_tools([schema], tool_choice="City").invoke("Which city?")
    usage = whole.usage_metadata
    print(json.dumps([whole.content, streamed, structured, called.tool_calls, usage]))


if __name__ == "__main__":
    main()
