"""Addresses: what a network may give out, and the lowest that is free, compared with trying every one."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statesvc.store.addresses import Pool, Taken, number_of, read_number, read_pool, text_of
from statesvc_client.errors import BadRequest

NETWORK = ipaddress.ip_network("10.0.0.0/26")
ADDRESSES = st.sampled_from([str(address) for address in NETWORK])
RESERVED = st.one_of(ADDRESSES, st.sampled_from(["10.0.0.8/29", "10.0.0.16/28", "10.0.0.62/31", "10.1.0.0/16", "::/0"]))


def open_ones(pool: Pool) -> list[str]:
    """Every address, asked for one by one."""
    return [text_of(number) for number in range(pool.first, pool.last + 1) if pool.has(number)]


def lowest(taken: Taken) -> str | None:
    number = taken.lowest()
    return None if number is None else text_of(number)


@given(gateway=st.none() | ADDRESSES, reserved=st.lists(RESERVED, max_size=6))
def test_a_pool_is_its_hosts_without_the_gateway_and_what_is_reserved(gateway: str | None, reserved: list[str]):
    pool = read_pool("net", {"cidr": str(NETWORK), "gateway": gateway, "reserved": reserved})
    closed = [ipaddress.ip_network(each) for each in [*reserved, *([gateway] if gateway else [])]]
    expected = [str(host) for host in NETWORK.hosts() if not any(host in each for each in closed)]
    assert open_ones(pool) == expected
    assert pool.size == len(expected)


@pytest.mark.parametrize(
    "cidr", ["10.0.0.0/30", "10.0.0.0/31", "10.0.0.7/32", "fd00::/125", "fd00::/127", "fd00::/128"]
)
def test_the_ends_of_small_networks_are_those_the_standards_name(cidr: str):
    assert open_ones(read_pool("net", {"cidr": cidr})) == [str(host) for host in ipaddress.ip_network(cidr).hosts()]


@given(changes=st.lists(st.tuples(st.sampled_from(["take", "take-lowest", "free", "reserve"]), ADDRESSES), max_size=60))
def test_the_lowest_free_address_is_the_one_found_by_trying_all(changes: list[tuple[str, str]]):
    taken, out, reserved = Taken(), set[str](), list[str]()
    pool = read_pool("net", {"cidr": str(NETWORK)})
    for change, address in changes:
        found = lowest(taken) if change == "take-lowest" else address
        if change == "reserve":
            reserved.append(address)
            pool = read_pool("net", {"cidr": str(NETWORK), "reserved": reserved})
        elif change == "free":
            taken.free(number_of(ipaddress.ip_address(address)))
            out.discard(address)
        elif found is not None:
            taken.take(number_of(ipaddress.ip_address(found)), None)
            out.add(found)
        while taken.follow(pool):
            pass
        assert lowest(taken) == next((each for each in open_ones(pool) if each not in out), None)
    assert len(taken) == len(out)


def test_an_address_is_free_once_neither_its_own_record_nor_another_names_it():
    taken = Taken()
    while taken.follow(read_pool("net", {"cidr": "10.0.0.0/30"})):
        pass
    number = number_of(ipaddress.ip_address("10.0.0.1"))
    taken.take(number, None)
    for _ in range(2):
        taken.name(number)
    assert lowest(taken) == "10.0.0.2"
    for give_back in (taken.unname, taken.free):
        give_back(number)
        assert lowest(taken) == "10.0.0.2"
    taken.unname(number)
    assert (lowest(taken), len(taken)) == ("10.0.0.1", 0)


def test_addresses_of_an_owner_that_ended_are_remembered_until_they_change_hands():
    taken = Taken()
    for number, owner in enumerate(["job/a", "job/b", "job/a", None]):
        taken.take(number, owner)
    taken.owner_ended("job/a")
    taken.owner_ended("job/nobody")
    assert taken.ended == {0, 2}
    taken.take(0, "job/b")
    taken.free(2)
    assert taken.ended == set()
    taken.owner_ended("job/b")
    assert taken.ended == {0, 1}


@pytest.mark.parametrize("text", ["10.0.0.1", "0.0.0.1", "::1", "fd00::ffff", "255.255.255.255"])
def test_an_address_is_one_number_and_back(text: str):
    number = read_number(text)
    assert number is not None
    assert text_of(number) == text


def test_one_number_never_means_two_addresses():
    assert read_number("0.0.0.1") != read_number("::1")


@pytest.mark.parametrize("text", ["", "x", "10.0.0", "10.0.0.256", "FD00::1", "fd00:0::1", "10.0.0.1/32"])
def test_what_is_not_written_as_everybody_writes_it_is_no_address(text: str):
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "network net has no cidr"),
        ({"cidr": 7}, "cidr must be a CIDR like 10.0.0.0/24, not a int"),
        ({"cidr": "ten"}, "cidr must be a CIDR like 10.0.0.0/24, not ten"),
        ({"cidr": "10.0.0.0/24", "gateway": "10.0.0.0/30"}, "gateway must be an address, not 10.0.0.0/30"),
        ({"cidr": "10.0.0.0/24", "reserved": "10.0.0.1"}, "reserved must be a list"),
        ({"cidr": "10.0.0.0/24", "reserved": ["x"]}, "reserved must be a CIDR like 10.0.0.0/24, not x"),
        ({"cidr": "10.0.0.0/24", "reserved": ["x"] * 4097}, "reserved has 4097 entries; the limit is 4096"),
    ],
)
def test_a_network_that_cannot_be_read_is_refused_by_field(fields: dict, text: str):
    with pytest.raises(BadRequest, match=text):
        read_pool("net", fields)
