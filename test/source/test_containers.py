"""The files of conf/container fit each other and the tree. Neither Docker nor Kubernetes runs here: the objects are held
against the part of their public schema that they use, so a word that is none of it is found."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

try:
    import jsonschema
    import yaml
except ModuleNotFoundError as missing:
    raise unittest.SkipTest(f"{missing.name} is not installed: CONTAINERS ARE NOT TESTED") from None

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DTHROTTLE_BUILD", ROOT / "build"))
FOLDER = ROOT / "conf/container"
TEXT, FLAG, NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
PATH = {"type": "string", "pattern": "^/"}
AMOUNT = {"type": "string", "pattern": "^[0-9]+(m|Mi|Gi)$"}


def a(required="", **properties):
    """An object of these fields and no others."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def one_of(*words):
    return {"enum": list(words)}


def some(items):
    return {"type": "array", "minItems": 1, "items": items}


METADATA = a("name", name=TEXT, labels=TEXTS)
PROBE = a("httpGet", periodSeconds=NUMBER, httpGet=a("path port", host=TEXT, path=PATH, port=PORT))
CONTAINER = a(
    "name image", name=TEXT, image=TEXT, command=some(TEXT),
    env=some(a("name valueFrom", name=TEXT, valueFrom=a("fieldRef", fieldRef=a(
        "fieldPath", fieldPath=one_of("spec.nodeName", "status.hostIP"))))),
    ports=some(a("containerPort", name=TEXT, protocol=one_of("TCP"), containerPort=PORT)),
    livenessProbe=PROBE, readinessProbe=PROBE,
    resources=a(requests=a(cpu=AMOUNT, memory=AMOUNT), limits=a(cpu=AMOUNT, memory=AMOUNT)),
    securityContext=a(allowPrivilegeEscalation=FLAG, readOnlyRootFilesystem=FLAG,
                      capabilities=a(add=some(TEXT), drop=some(TEXT))),
    volumeMounts=some(a("name mountPath", name=TEXT, mountPath=PATH, readOnly=FLAG)))
POD = a(
    "containers", hostNetwork=FLAG, shareProcessNamespace=FLAG, priorityClassName=TEXT,
    dnsPolicy=one_of("ClusterFirst", "ClusterFirstWithHostNet"),
    automountServiceAccountToken=FLAG, terminationGracePeriodSeconds=NUMBER, tolerations=some(a(operator=one_of("Exists"))),
    initContainers=some(CONTAINER), containers=some(CONTAINER),
    volumes=some(a("name", name=TEXT, configMap=a("name", name=TEXT, optional=FLAG),
                   hostPath=a("path", path=PATH, type=one_of("Directory", "DirectoryOrCreate")))))
KINDS = {
    "Service": a("apiVersion kind metadata spec", apiVersion=one_of("v1"), kind=TEXT, metadata=METADATA, spec=a(
        "selector ports", clusterIP=one_of("None"), publishNotReadyAddresses=FLAG, selector=TEXTS,
        ports=some(a("port", name=TEXT, protocol=one_of("TCP"), port=PORT)))),
    "ConfigMap": a("apiVersion kind metadata data", apiVersion=one_of("v1"), kind=TEXT, metadata=METADATA, data=TEXTS),
    "DaemonSet": a("apiVersion kind metadata spec", apiVersion=one_of("apps/v1"), kind=TEXT, metadata=METADATA, spec=a(
        "selector template", selector=a("matchLabels", matchLabels=TEXTS),
        updateStrategy=a("type", type=one_of("RollingUpdate"), rollingUpdate=a(maxUnavailable=NUMBER)),
        template=a("metadata spec", metadata=a("labels", labels=TEXTS), spec=POD))),
}


class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.objects = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
        self.service, self.map, self.set = self.objects
        self.pod = self.set["spec"]["template"]["spec"]
        (self.daemon,) = self.pod["containers"]
        self.settings = self.map["data"]["dthrottled.toml"]

    def test_the_objects_are_of_their_schema(self):
        for item in self.objects:
            jsonschema.validate(item, KINDS[item["kind"]])

    def test_selectors_find_the_pods_and_mounts_their_volumes(self):
        labels = self.set["spec"]["template"]["metadata"]["labels"]
        self.assertEqual([self.service["spec"]["selector"], self.set["spec"]["selector"]["matchLabels"]], 2 * [labels])
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        mounts = [mount for container in (self.daemon, *self.pod["initContainers"]) for mount in container["volumeMounts"]]
        self.assertEqual({mount["name"] for mount in mounts}, set(volumes))
        self.assertEqual(volumes["settings"]["configMap"]["name"], self.map["metadata"]["name"])

    def test_the_daemon_is_not_process_1(self):
        self.assertTrue(self.pod.get("shareProcessNamespace"))

    def test_ports_and_the_srv_record_are_those_of_the_settings(self):
        (port,) = self.service["spec"]["ports"]
        self.assertEqual([p["containerPort"] for p in self.daemon["ports"]], [port["port"]])
        self.assertIn(f':{port["port"]}"', re.search(r"bind = (.*)", self.settings)[1])
        record = f'srv://_{port["name"]}._tcp.{self.service["metadata"]["name"]}.default.svc.cluster.local'
        self.assertIn(f'"{record}"', self.settings)
        http = re.search(r'^http = "127.0.0.1:(\d+)"', (ROOT / "conf/dthrottled.toml").read_text(), re.M)[1]
        for probe in ("livenessProbe", "readinessProbe"):
            self.assertEqual(self.daemon[probe]["httpGet"]["port"], int(http))

    def test_the_key_that_is_made_and_the_settings_are_accepted(self):
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / "own"
            peers = Path(folder) / "peers/..data"    # a ConfigMap is links to the files of a folder
            own.mkdir()
            peers.mkdir(parents=True)
            script = self.pod["initContainers"][0]["command"][-1].replace("chown dthrottle", "true")
            variables = {**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}", "NODE": "node-1", "ADDRESS": "10.0.0.1"}
            for _ in range(2):    # of which the second makes none
                made = subprocess.run(["/bin/sh", "-ec", script.replace("/etc/dthrottle", folder)], env=variables,
                                      capture_output=True, text=True, timeout=60)
                self.assertEqual(made.returncode, 0, made.stderr)
            shutil.copy(own / "node-1.pub", peers)
            self.assertIn(made.stdout.splitlines()[-1], (peers / "node-1.pub").read_text())
            (peers.parent / "node-1.pub").symlink_to("..data/node-1.pub")
            text = self.settings.replace("/etc/dthrottle", folder).replace('user = "dthrottle"', 'user = ""')
            Path(folder, "dthrottled.toml").write_text(text)
            done = subprocess.run([BUILD / "dthrottled", "--check", f"{folder}/dthrottled.toml"], capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout)


class Dockerfile(unittest.TestCase):
    def setUp(self):
        text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.M)
        self.steps = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]

    def test_every_stage_begins_with_the_release_that_packages_sh_is_for(self):
        self.assertEqual(self.steps[0][0], "FROM")
        self.assertLessEqual({step for step, _ in self.steps}, {"FROM", "COPY", "RUN", "ENTRYPOINT"})
        stages = [words.split() for step, words in self.steps if step == "FROM"]
        self.assertEqual([stage[0] for stage in stages], ["debian:bookworm", "debian:bookworm-slim"])
        self.assertEqual(stages[0][1:], ["AS", "build"])

    def test_no_package_of_the_build_is_named_but_in_packages_sh(self):
        """The build is that of scripts/package, and apt takes what is needed to run from the packages."""
        runs = [words for step, words in self.steps if step == "RUN"]
        self.assertEqual(runs[0], "/src/scripts/package")
        installed = re.search(r"apt-get install ([^&]*)", runs[1])[1].split()
        self.assertEqual([word for word in installed if not word.startswith("-")], ["tini", "/packages/*.deb"])
        copied = " ".join(words for step, words in self.steps if step == "COPY")
        script = (ROOT / "scripts/package").read_text()
        self.assertIn("build/package", script)
        control = (ROOT / "conf/debian/control").read_text()
        for name in re.findall(r"/src/build/package/([a-z-]+)_\*\.deb", copied):
            self.assertIn(f"\nPackage: {name}\n", control)

    def test_what_is_left_out_is_nothing_that_the_build_reads(self):
        left_out = (FOLDER / "Dockerfile.dockerignore").read_text().split()
        tracked = {path.name for path in ROOT.iterdir()} - {".git"}
        self.assertEqual([name for name in ("src", "conf", "scripts", "man", "protocol", "test", "meson.build")
                          if name in left_out or name not in tracked], [])

    def test_the_daemon_starts_as_the_unit_starts_it_behind_an_init(self):
        start = re.search(r"^ExecStart=(.*)$", (ROOT / "conf/dthrottled.service").read_text(), re.M)[1].split()
        self.assertEqual(yaml.safe_load(dict(self.steps)["ENTRYPOINT"]), ["/usr/bin/tini", "--", *start])


if __name__ == "__main__":
    unittest.main()
