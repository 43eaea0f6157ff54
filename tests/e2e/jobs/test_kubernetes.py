"""The Kubernetes manifests, without a cluster: they parse, are consistent, and use existing options
and variables."""
import os
import re
import subprocess

import yaml
from conftest import ROOT

import testbed

FOLDER = os.path.join(ROOT, "deploy", "kubernetes")


def documents(name):
    with open(os.path.join(FOLDER, name)) as f:
        return {d["kind"]: d for d in yaml.safe_load_all(f)}


def pod(document):
    return document["spec"]["template"]["spec"]


def options(container):
    """Returns the options of a container's program: {option: value or None}."""
    words = container["args"]
    values = {}
    for word, following in zip(words, [*words[1:], ""]):
        if word.startswith("--"):
            option, _, value = word.partition("=")
            values[option] = value or (following if not following.startswith("--") else None)
    return values


def test_programs_are_given_options_that_they_have():
    manifests = documents("cool.yaml")
    for kind, program in (("StatefulSet", "cool-controller"), ("DaemonSet", "cool-nodeagent")):
        [container] = pod(manifests[kind])["containers"]
        assert container["command"] == [program]
        help_text = subprocess.run([os.path.join(testbed.BIN, program), "--help"], capture_output=True, text=True, check=True).stdout
        options_in_help = set(re.findall(r"--[a-z-]+", help_text))
        assert options(container) and set(options(container)) <= options_in_help, program
        # An example of the name of a node replaces the variable.
        arguments = [argument.replace("$(NODE)", "node1") for argument in container["args"]]
        subprocess.run([os.path.join(testbed.BIN, program), *arguments, "--check-config"], check=True)


def test_the_parts_fit_together():
    manifests = documents("cool.yaml")
    controllers, service = manifests["StatefulSet"], manifests["Service"]
    labels = controllers["spec"]["template"]["metadata"]["labels"]
    assert controllers["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert manifests["DaemonSet"]["spec"]["selector"]["matchLabels"] == manifests["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    for document in (controllers, manifests["DaemonSet"], documents("job.yaml")["Job"]):
        volumes = {v["name"] for v in pod(document)["volumes"]}
        for container in pod(document)["containers"]:
            assert {m["name"] for m in container["volumeMounts"]} == volumes


def test_two_controllers_run_on_separate_nodes_known_to_agents():
    manifests = documents("cool.yaml")
    controllers, service = manifests["StatefulSet"], manifests["Service"]
    assert controllers["spec"]["replicas"] == 2
    [anti_affinity] = pod(controllers)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (anti_affinity["topologyKey"], anti_affinity["labelSelector"]["matchLabels"]) == ("kubernetes.io/hostname", service["spec"]["selector"])
    # The names of the pods in a stateful set belong to a headless service, which does not
    # distinguish the standby from the leader.
    assert controllers["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    [port], domain = service["spec"]["ports"], "%s.%s.svc" % (service["metadata"]["name"], service["metadata"]["namespace"])
    names = ["%s-%d" % (controllers["metadata"]["name"], which) for which in range(2)]
    [agent] = pod(manifests["DaemonSet"])["containers"]
    assert options(agent)["--controller"] == ",".join("https://%s.%s:%d" % (name, domain, port["port"]) for name in names)


def test_controllers_use_etcd_over_tls():
    controllers = documents("cool.yaml")["StatefulSet"]
    [controller] = pod(controllers)["containers"]
    values = options(controller)
    assert len({url for url in values["--lead-by"].split(",") if url.startswith("https://")}) == 3
    mounts = {m["mountPath"]: m["name"] for m in controller["volumeMounts"]}
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod(controllers)["volumes"]}
    with open(os.path.join(FOLDER, "cool.yaml")) as f:
        [command] = [line for line in f if "create secret generic %s " % secrets["etcd"] in line]
    for option in ("--lead-by-ca", "--lead-by-cert", "--lead-by-key"):
        folder, _, file = values[option].rpartition("/")
        assert mounts[folder] == "etcd" and "--from-file=%s=" % file in command


def test_health_checks_use_the_page_that_shows_a_hung_core():
    manifests = documents("cool.yaml")
    for kind in ("StatefulSet", "DaemonSet"):
        [container] = pod(manifests[kind])["containers"]
        for name in ("readinessProbe", "livenessProbe"):
            probe = container[name]["httpGet"]
            assert "%s:%d" % (probe["host"], probe["port"]) == options(container)["--http"]
            # The page itself answers within 5 s.
            assert probe["path"] == "/healthz" and container[name]["timeoutSeconds"] > 5


def test_every_rank_of_the_job_receives_its_number():
    job, agent = documents("job.yaml")["Job"], documents("cool.yaml")["DaemonSet"]
    [rank], [daemon] = pod(job)["containers"], pod(agent)["containers"]
    variables = {v["name"]: v.get("value") or v["valueFrom"]["fieldRef"]["fieldPath"] for v in rank["env"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert int(variables["COOL_SIZE"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert "job-completion-index" in variables["COOL_RANK"] and "controller-uid" in variables["COOL_JOB"]
    assert variables["COOL_SOCKET"] == options(daemon)["--socket"]
    assert pod(job)["volumes"][0]["hostPath"]["path"] == pod(agent)["volumes"][1]["hostPath"]["path"]
