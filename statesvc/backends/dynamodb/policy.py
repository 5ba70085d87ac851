"""The least an identity has to be allowed, as policies of IAM: one for the daemon, one for `statesvc init`.

Owns these lists: documents, the command line and tests show this very text. Must not know how calls are made.

A transaction needs no action of its own: each of its parts is allowed like the same thing done alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

SERVING = (
    "dynamodb:BatchGetItem",
    "dynamodb:BatchWriteItem",
    "dynamodb:DeleteItem",
    "dynamodb:DescribeTable",
    "dynamodb:GetItem",
    "dynamodb:PutItem",
    "dynamodb:Query",
    "dynamodb:Scan",
    "dynamodb:UpdateItem",
)

PREPARING = (
    "dynamodb:CreateTable",
    "dynamodb:DescribeTable",
    "dynamodb:DescribeTimeToLive",
    "dynamodb:PutItem",
    "dynamodb:Query",
    "dynamodb:Scan",
    "dynamodb:UpdateItem",
    "dynamodb:UpdateTable",
    "dynamodb:UpdateTimeToLive",
)
"""Scan and UpdateItem: for the items of a table that was Joblet's. Query and PutItem: to note that they are done."""


def policy(actions: tuple[str, ...], *tables: str, region: str = "*", account: str = "*") -> dict[str, Any]:
    """A policy that allows these actions on these tables and their indexes, and nothing else."""
    arns = [f"arn:aws:dynamodb:{region or '*'}:{account}:table/{name}" for name in tables]
    resources = [each for arn in arns for each in (arn, f"{arn}/index/*")]
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": resources}],
    }


def text(actions: tuple[str, ...], *tables: str, region: str = "*", account: str = "*") -> str:
    """The same as people paste it."""
    return msgspec.json.format(msgspec.json.encode(policy(actions, *tables, region=region, account=account))).decode()
