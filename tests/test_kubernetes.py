"""The Kubernetes manifests, without a cluster: they parse, fit together, and use options and variables that exist."""
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
    """What a container's program is given: {option: value or None}."""
    words = container["args"]
    given = {}
    for word, following in zip(words, [*words[1:], ""]):
        if word.startswith("--"):
            option, _, value = word.partition("=")
            given[option] = value or (following if not following.startswith("--") else None)
    return given


def test_programs_are_given_options_that_they_have():
    found = documents("cool.yaml")
    for kind, program in (("Deployment", "cool-controller"), ("DaemonSet", "cool-nodeagent")):
        [container] = pod(found[kind])["containers"]
        assert container["command"] == [program]
        shown = subprocess.run([os.path.join(testbed.BIN, program), "--help"], capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"--[a-z-]+", shown))
        assert options(container) and set(options(container)) <= known, program


def test_the_parts_fit_together():
    found = documents("cool.yaml")
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == found["Service"]["spec"]["selector"] == labels
    assert found["DaemonSet"]["spec"]["selector"]["matchLabels"] == found["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    service, [port] = found["Service"]["metadata"], found["Service"]["spec"]["ports"]
    address = "https://%s.%s.svc:%d" % (service["name"], service["namespace"], port["port"])
    [agent] = pod(found["DaemonSet"])["containers"]
    assert options(agent)["--controller"] == address
    for document in (found["Deployment"], found["DaemonSet"], documents("job.yaml")["Job"]):
        volumes = {v["name"] for v in pod(document)["volumes"]}
        for container in pod(document)["containers"]:
            assert {m["name"] for m in container["volumeMounts"]} == volumes


def test_every_rank_of_the_job_is_told_who_it_is():
    job, agent = documents("job.yaml")["Job"], documents("cool.yaml")["DaemonSet"]
    [rank], [daemon] = pod(job)["containers"], pod(agent)["containers"]
    variables = {v["name"]: v.get("value") or v["valueFrom"]["fieldRef"]["fieldPath"] for v in rank["env"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert int(variables["COOL_SIZE"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert "job-completion-index" in variables["COOL_RANK"] and "controller-uid" in variables["COOL_JOB"]
    assert variables["COOL_SOCKET"] == options(daemon)["--socket"]
    assert pod(job)["volumes"][0]["hostPath"]["path"] == pod(agent)["volumes"][1]["hostPath"]["path"]
