"""Several daemons that share limits, for a `with` block: on loopback, or in the namespaces of a Network.

What they say of a tag is compared with plain arithmetic: a limit that is refilled as slowly as possible has a level of
burst - hits, wherever the hits were served, once every host has heard of them.
"""

import contextlib
import random
import shutil
import socket
import threading
import time

from daemon import DTHROTTLECTL, PATIENCE, Daemon, fresh_directory, run, wait_until

BURST = 20_000    # of the limits whose hits are counted: many, and yet no part of a token comes back within a minute

# Sockets by whose names tests that run at once tell each other which ports they have, open as long as this one runs.
_claims = []


def _claim(port):
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0dthrottle-test-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def free_port_pair():
    """The lower of two ports on loopback that nobody has, below those that outgoing connections take."""
    chance = random.SystemRandom()
    for _ in range(1000):
        port = chance.randrange(10_000, 32_000, 2)
        with contextlib.ExitStack() as stack:
            try:
                for number in (port, port + 1):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
            if _claim(port):
                return port
    raise AssertionError("no two free ports side by side")


def make_keys(directory, name, address=""):
    """NAME.key and NAME.pub in the directory."""
    made = run(DTHROTTLECTL, "keygen", name, "-d", directory, *(["-a", address] if address else []))
    if made.returncode != 0:
        raise AssertionError(f"keygen left with {made.returncode}: {made.stderr}")


class Host(Daemon):
    """A daemon with a name and an address for its peers. `peers` are its settings, to be changed before a reload."""

    def __init__(self, name, address, *limits, peers, **options):
        self.name = name
        self.address = address
        self.limits = limits
        self.peers = {"name": name, "bind": address, **peers}
        super().__init__(*limits, peers=self.peers, **options)

    @property
    def port(self):
        return int(self.address.rpartition(":")[2])

    def reload(self, **peers):
        """Puts changed settings of peers in force by SIGHUP."""
        self.peers.update(peers)
        self._sections["peers"] = self.peers
        self.write_settings(*self.limits)
        self.hang_up()

    def crash(self, keep_table=True):
        self.kill()
        if not keep_table:
            self.forget()

    def forget(self):
        """Deletes the table, as a reboot does."""
        (self.directory / "table").unlink()

    def level(self, tag):
        return self.admin_json(f"show {tag}")["level"]

    def links(self):
        """What `peers` says, by address."""
        return {row["address"]: row for row in self.admin_json("peers")}

    def link_to(self, host):
        return self.links().get(host.address)

    def hears(self, host):
        link = self.link_to(host)
        return link is not None and link["state"] == "up" and link["reports"] > 0


class Fleet(contextlib.ExitStack):
    """So many hosts, each of which knows all others. Gives the hosts as a list.

    With `owners`, so many of the first hosts own all tags, and every host connects to these alone. With `etcd`, settings
    of peers, the list is there, and these hosts enter themselves.
    `connect` says for the index of a host which addresses it has instead. With `network` every host has a namespace of
    its own there, and keys, because nothing but loopback goes without. `wrappers` are words in front of the command of
    each host.
    """

    def __init__(self, *limits, hosts=2, period="250ms", keys=False, names=None, connect=None, network=None,
                 wrappers=None, owners=0, etcd=None, **sections):
        super().__init__()
        names = names or [chr(ord("a") + i) for i in range(hosts)]
        addresses = ([f"tcp://{ip}:7314" for ip in network.addresses] if network
                     else [f"tcp://127.0.0.1:{free_port_pair()}" for _ in range(hosts)])
        self.keys = fresh_directory() if keys or network else None
        self.hosts = []
        try:
            if self.keys is not None:
                self.callback(shutil.rmtree, self.keys, ignore_errors=True)
                for name, address in zip(names, addresses):
                    make_keys(self.keys, name, address)
            for i, (name, address) in enumerate(zip(names, addresses)):
                others = [other for other in addresses if other != address]
                peers = {"connect": (connect or {}).get(i, others), "period": period}
                if etcd:
                    del peers["connect"]
                    peers.update(spread="owners", owner=i < owners, **etcd)
                elif owners:
                    peers.update(connect=addresses[:owners], spread="owners", owners=names[:owners])
                if self.keys is not None:
                    peers.update(key_file=f"{self.keys}/{name}.key", authorized_keys=str(self._authorized(name)))
                self.hosts.append(Host(name, address, *limits, peers=peers,
                                       wrapper=network.wrapper(i) if network else (wrappers or {}).get(i, ()),
                                       **sections))
                self.callback(shutil.rmtree, self.hosts[-1].directory, ignore_errors=True)    # of one that never ran
        except BaseException:
            self.close()
            raise

    def _authorized(self, name):
        """A directory for each host, so that a test can change what one of them believes."""
        directory = self.keys / f"authorized-by-{name}"
        directory.mkdir()
        for key in self.keys.glob("*.pub"):
            shutil.copy(key, directory)
        return directory

    def __enter__(self):
        try:
            for host in self.hosts:
                self.enter_context(host)
        except BaseException:
            self.close()
            raise
        return self.hosts


def all_hear(hosts):
    return all(a.hears(b) for a in hosts for b in hosts if a is not b)


def wait_all_hear(hosts, seconds=PATIENCE):
    wait_until(lambda: all_hear(hosts), "every host hears every other", seconds)


def owners_hear(hosts, owners):
    """Whether the owners, which are the first of the hosts, hear all others, and the others hear the owners."""
    def heard(host):
        return sum(row["state"] == "up" and row["reports"] > 0 for row in host.admin_json("peers"))
    return all(heard(host) == (len(hosts) - 1 if i < owners else owners) for i, host in enumerate(hosts))


def wait_owners_hear(hosts, owners, seconds=3 * PATIENCE):
    wait_until(lambda: owners_hear(hosts, owners), "owners hear everybody, and everybody the owners", seconds)


def settled(hosts):
    """Whether all hosts divide capacities by the same generation, under a lease."""
    said = [host.admin_json("capacity") for host in hosts]
    return all(s.get("leased") for s in said) and len({s["generation"] for s in said}) == 1


def wait_settled(hosts, seconds=2 * PATIENCE):
    wait_until(lambda: settled(hosts), "the hosts have begun to divide", seconds)


class Ledger:
    """How many hits of which tag were served, wherever; says whether the hosts agree with it."""

    def __init__(self, burst=BURST):
        self.burst = burst
        self.hits = {}
        self._lock = threading.Lock()

    def serve(self, host, tag, hits):
        """Asks so often, and every query has to be served."""
        if (served := host.served(tag, hits)) != hits:
            raise AssertionError(f"{host.name} served {served} of {hits} queries for {tag}")
        with self._lock:
            self.hits[tag] = self.hits.get(tag, 0) + hits

    def missing(self, hosts):
        """(host, tag): hits that the host does not know of, for each that is not right; negative: charged twice."""
        wrong = {}
        for host in hosts:
            with host.admin_session() as admin:
                for tag, hits in sorted(self.hits.items()):
                    level = admin.ask_json(f"show {tag}")["level"]
                    missing = level - (self.burst - hits)
                    if abs(missing) > 0.2:
                        wrong[host.name, tag] = round(missing, 3)
        return wrong

    def settle(self, hosts, seconds=PATIENCE, quiet=1.0):
        """Waits until all hosts know of all hits, and returns how long that took. Nothing may change afterwards."""
        begin = time.monotonic()
        while wrong := self.missing(hosts):
            if time.monotonic() - begin > seconds:
                raise AssertionError(f"after {seconds:g} s hits are missing (or counted twice, if negative): {wrong}")
            time.sleep(0.02)
        took = time.monotonic() - begin
        time.sleep(quiet)
        if wrong := self.missing(hosts):
            raise AssertionError(f"levels were right and are not any more: {wrong}")
        return took


def wrong_at_owners(ledger, owners):
    """Tags of which no owner knows all hits, or any host more than were served; the others need not know of all."""
    missing = ledger.missing(owners)
    by_tag = {tag: [missing.get((owner.name, tag), 0) for owner in owners] for tag in ledger.hits}
    return {tag: those for tag, those in by_tag.items() if min(those) != 0}


def settle_owners(ledger, owners):
    """Waits until all hits of the ledger are known, each once."""
    wait_until(lambda: not wrong_at_owners(ledger, owners), "the owners know all hits", PATIENCE)
    time.sleep(1)
    if late := wrong_at_owners(ledger, owners):
        raise AssertionError(f"levels were right and are not any more: {late}")


class Traffic:
    """Asks every host for its own and for shared tags, some ten times a second, until it is told to stop."""

    def __init__(self, ledger, hosts, tags=("shared", "other")):
        self._ledger = ledger
        self._tags = tags
        self._stop = threading.Event()
        self._locks = {host: threading.Lock() for host in hosts}
        self._threads = [threading.Thread(target=self._ask, args=(host,)) for host in hosts]
        self._problems = []

    def _ask(self, host):
        chance = random.Random(host.name)
        try:
            while not self._stop.wait(0.05 + 0.1 * chance.random()):
                with self._locks[host]:
                    self._ledger.serve(host, chance.choice([*self._tags, f"own-{host.name}"]), chance.randrange(1, 9))
        except BaseException as problem:    # told in __exit__
            self._problems.append(problem)

    def pause(self, host):
        """A context in which that host has no query under way: for ending it without an answer in doubt."""
        return self._locks[host]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _type, error, _traceback):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._problems and error is None:
            raise self._problems[0]
