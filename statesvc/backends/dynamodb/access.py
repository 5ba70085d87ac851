"""Where DynamoDB is and as whom it is called: region, endpoint, credentials, by the usual chain.

Owns what is asked of botocore, which reads environment, profiles, web identities, container and instance metadata. Must
not know tables or items. Everything here but `read_url` may block, on files and on the network: call it in threads.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, urlsplit
from urllib.request import getproxies, proxy_bypass

from msgspec import Struct

from statesvc_client.errors import BadRequest, Unavailable

from ...addresses import is_web_address
from .signing import Credentials

if TYPE_CHECKING:
    from botocore.credentials import Credentials as Source  # type: ignore[import-untyped]
    from botocore.session import Session  # type: ignore[import-untyped]

    from ...config.model import Dynamodb

WHERE_REGIONS_ARE = "storage.dynamodb.region, AWS_REGION, AWS_DEFAULT_REGION, the profile, the instance's metadata"
WHERE_CREDENTIALS_ARE = (
    "the environment (AWS_ACCESS_KEY_ID), the files of the profile, a web identity, "
    "the metadata of the container and of the instance"
)


class Access(Struct, frozen=True, kw_only=True):
    """What the configuration says about reaching the service; what is empty is found out."""

    region: str = ""
    endpoint: str = ""
    timeout_seconds: float = 10.0
    connections: int = 32

    @classmethod
    def of(cls, options: Dynamodb) -> Access:
        return cls(
            region=options.region,
            endpoint=options.endpoint,
            timeout_seconds=options.timeout_seconds,
            connections=options.connections,
        )


class Found(NamedTuple):
    """The service, as it is to be called."""

    region: str
    url: str
    tls: ssl.SSLContext | None
    proxy: str | None


def find(access: Access) -> Found:
    """Region, endpoint and what else the way there needs. Raises `Unavailable` in words an operator can act on."""
    session = _session()
    region = access.region or _region(session)
    url = (access.endpoint or _configured_endpoint(session) or _endpoint_of(session, region)).rstrip("/")
    parts = _checked(url)
    tls = _tls(session) if parts.scheme == "https" else None
    return Found(region, url, tls, _proxy(parts.scheme, parts.hostname or ""))


def load(_: Access) -> Source:
    """Credentials, looked for from the beginning of the chain."""
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    try:
        source = _session().get_credentials()
    except (BotoCoreError, ClientError) as problem:
        raise Unavailable(_not_had(problem)) from problem
    if source is None:
        raise Unavailable(f"there are no credentials for DynamoDB: looked in {WHERE_CREDENTIALS_ARE}")
    return source


def freeze(source: Source) -> Credentials:
    """The credentials as they are now; a source that refreshes does so here, when it is time."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        now = source.get_frozen_credentials()
    # A source that has them expired and gets no others raises a bare RuntimeError.
    except (BotoCoreError, ClientError, RuntimeError) as problem:
        raise Unavailable(_not_had(problem)) from problem
    return Credentials(now.access_key, now.secret_key, now.token)


def wants_renewal(source: Source) -> bool:
    """Whether it is time to have others, well before these end. Does not block."""
    needed = getattr(source, "refresh_needed", None)
    return needed is not None and bool(needed())


def has_ended(source: Source) -> bool:
    """Whether they are no longer good for anything. Does not block."""
    needed = getattr(source, "refresh_needed", None)
    return needed is not None and bool(needed(refresh_in=0))


def _not_had(problem: Exception) -> str:
    # By its name only: what botocore says may quote files or what a server replied.
    return f"credentials for DynamoDB could not be had ({type(problem).__name__}): looked in {WHERE_CREDENTIALS_ARE}"


def _session() -> Session:
    import botocore.session  # type: ignore[import-untyped]

    # At debug level botocore writes down replies of the token service, secrets and all; at others it may quote them.
    for name in ("botocore", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return botocore.session.get_session()


def _region(session: Session) -> str:
    from botocore.exceptions import BotoCoreError
    from botocore.utils import IMDSRegionProvider  # type: ignore[import-untyped]

    try:
        found = (
            os.environ.get("AWS_REGION")
            or session.get_config_variable("region")
            or IMDSRegionProvider(session).provide()
        )
    except BotoCoreError as problem:
        raise Unavailable(f"the region could not be found out ({type(problem).__name__})") from problem
    if not found:
        raise Unavailable(f"there is no region for DynamoDB: looked in {WHERE_REGIONS_ARE}")
    return str(found)


def _configured_endpoint(session: Session) -> str:
    """As botocore's clients look for it: of the service before that of all services, environment before profile."""
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return ""
    profile = session.get_scoped_config()
    services = session.full_config.get("services", {}).get(profile.get("services"), {})
    found = (
        os.environ.get("AWS_ENDPOINT_URL_DYNAMODB")
        or os.environ.get("AWS_ENDPOINT_URL")
        or services.get("dynamodb", {}).get("endpoint_url")
        or profile.get("endpoint_url")
        or ""
    )
    return str(found)


def _endpoint_of(session: Session, region: str) -> str:
    from botocore.exceptions import BotoCoreError
    from botocore.regions import EndpointResolver  # type: ignore[import-untyped]

    try:
        found = EndpointResolver(session.get_data("endpoints")).construct_endpoint(
            "dynamodb",
            region,
            use_dualstack_endpoint=bool(session.get_config_variable("use_dualstack_endpoint")),
            use_fips_endpoint=bool(session.get_config_variable("use_fips_endpoint")),
        )
    except BotoCoreError as problem:
        raise Unavailable(f"region {region!r} has no endpoint of DynamoDB ({type(problem).__name__})") from problem
    if found is None:
        raise Unavailable(f"region {region!r} is not known to have DynamoDB; give storage.dynamodb.endpoint")
    return f"https://{found['hostname']}"


def _checked(url: str) -> SplitResult:
    # Not shown as it is: somebody may have put a password into it.
    if not is_web_address(url):
        raise Unavailable("storage.dynamodb.endpoint: not of the form http://host:port or https://host")
    return urlsplit(url)


def _tls(session: Session) -> ssl.SSLContext:
    """The authorities every program on botocore trusts: AWS_CA_BUNDLE or the profile's, else those it brings along."""
    from botocore.httpsession import where  # type: ignore[import-untyped]

    bundle = session.get_config_variable("ca_bundle") or where()
    try:
        return ssl.create_default_context(cafile=bundle)
    except (OSError, ssl.SSLError) as problem:
        raise Unavailable(f"the certificates in {bundle} cannot be read ({type(problem).__name__})") from problem


def _proxy(scheme: str, host: str) -> str | None:
    """What HTTPS_PROXY, HTTP_PROXY and NO_PROXY say."""
    return None if proxy_bypass(host) else getproxies().get(scheme)


# --- addresses of stores ---------------------------------------------------------------------------------------------

_PARAMETERS = {"region": "region", "endpoint": "endpoint", "companion": "companion_table", "ttl": "ttl_attribute"}


def read_url(url: str) -> dict[str, Any]:
    """The values of storage.dynamodb that `dynamodb://<table>?region=..&endpoint=..&companion=..` stands for."""
    parts = urlsplit(url)
    wanted = "dynamodb://<table>, and ?region=, &endpoint=, &companion= behind it where they are needed"
    if parts.scheme != "dynamodb" or not parts.netloc or parts.path not in {"", "/"} or parts.fragment:
        raise BadRequest(f"not an address of DynamoDB: it has the form {wanted}")
    if "@" in parts.netloc:
        raise BadRequest("credentials are not given in an address: they come from environment, profile or metadata")
    values: dict[str, Any] = {"table_name": parts.netloc}
    for name, given in parse_qs(parts.query, keep_blank_values=True).items():
        if name not in _PARAMETERS:
            raise BadRequest(f"{name!r} is not part of an address of DynamoDB: it has the form {wanted}")
        if len(given) != 1:
            raise BadRequest(f"{name!r} is given {len(given)} times in the address; give it once")
        values[_PARAMETERS[name]] = given[0]
    return values
