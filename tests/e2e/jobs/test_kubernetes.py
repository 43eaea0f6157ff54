"""The Helm chart and the examples for Kubernetes, without a cluster: they are valid for the schemas of
Kubernetes and Kubeflow Trainer, are consistent, and use existing options and variables.

`tools/kubernetes-tools DIR` installs Helm and the schemas; COOL_KUBERNETES_TOOLS names DIR. Tests that need
them are skipped otherwise.
"""
import functools
import json
import os
import re
import shutil
import subprocess

import pytest
import yaml
from conftest import ROOT

import testbed

CHART = os.path.join(ROOT, "deploy", "helm", "cool")
EXAMPLES = os.path.join(ROOT, "deploy", "kubernetes")
TOOLS = os.environ.get("COOL_KUBERNETES_TOOLS", "")
HELM = shutil.which("helm", path=os.path.join(TOOLS, "bin")) if TOOLS else shutil.which("helm")
INSTALL = "`tools/kubernetes-tools DIR` installs it, and COOL_KUBERNETES_TOOLS names DIR"
needs_helm = pytest.mark.skipif(not HELM, reason="there is no Helm: " + INSTALL)
needs_schemas = pytest.mark.skipif(not TOOLS, reason="there are no schemas: " + INSTALL)

# Without the cache of Python modules that tests use, because the tools have their own.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
ETCD = ",".join("https://etcd-%d.etcd:2379" % member for member in range(3))
# Values by the name of what they show.
VALUES = {
    "default": {},
    "pair": {"controller": {"hostNetwork": True, "etcd": {"endpoints": ETCD.split(",")}}},
    "openflow": {"controller": {"network": "openflow", "hostNetwork": True, "options": ["--host-mbit=10000"], "nodeSelector": {"net": "management"}},
                 "agent": {"interface": "eth1", "rawSockets": True, "tolerations": [{"operator": "Exists"}]}},
    "racks": {"racks": "# the \"west\"\nwest node[01-16]\neast node17\n", "agent": {"rackFromZone": True, "socketDirectory": "/run/other"},
              "controller": {"state": {"persistent": False}}, "imagePullSecrets": [{"name": "registry"}]},
}
every_value = pytest.mark.parametrize("values", VALUES)


def helm(*arguments, values=None):
    """Runs Helm, with values of a chart on its standard input; returns the finished process."""
    options, text = ([], None) if values is None else (["--values", "-"], json.dumps(values))
    return subprocess.run([HELM, *arguments, *options], input=text, capture_output=True, text=True)


@functools.cache
def rendered(name):
    """Returns what the chart renders to with the values of this name, as text."""
    process = helm("template", "cool", CHART, "--namespace", "ns", values=VALUES[name])
    assert process.returncode == 0, process.stderr
    return process.stdout


def documents(text):
    """Returns the documents of a YAML text by their kind."""
    found = [document for document in yaml.safe_load_all(text) if document]
    assert len({document["kind"] for document in found}) == len(found)
    return {document["kind"]: document for document in found}


def chart(name="default"):
    return documents(rendered(name))


def example(name):
    with open(os.path.join(EXAMPLES, name)) as f:
        return f.read()


def pod(document):
    return document["spec"]["template"]["spec"]


def containers(manifests):
    """Returns the only container of the controller and that of the agent."""
    return [container for kind in ("StatefulSet", "DaemonSet") for container in pod(manifests[kind])["containers"]]


def options(container):
    """Returns the options of a container's program: {option: value}."""
    return dict(word.split("=", 1) for word in container["args"])


def mounts(container):
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


@needs_schemas
@needs_helm
def test_rendered_charts_match_the_schemas(tmp_path):
    for name in VALUES:
        (tmp_path / name).write_text(rendered(name))
    # The oldest version that the chart permits, and that of the schemas.
    with open(os.path.join(CHART, "Chart.yaml")) as f:
        oldest = re.search(r"[0-9.]+", yaml.safe_load(f)["kubeVersion"])[0]
    for version in ([], ["--kubernetes-version", oldest]):
        command = [os.path.join(TOOLS, "bin/kubernetes-validate"), "--strict", *version, *tmp_path.iterdir(), os.path.join(EXAMPLES, "job.yaml")]
        process = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
        assert process.returncode == 0, process.stdout + process.stderr
        assert process.stdout.count("passed") == sum(len(chart(name)) for name in VALUES) + 1, process.stdout


@needs_helm
def test_helm_finds_nothing_wrong_with_the_chart():
    process = helm("lint", "--strict", CHART)
    assert process.returncode == 0, process.stdout


@needs_helm
@pytest.mark.parametrize("values", [{"agent": {"intreface": "eth1"}}, {"controller": {"network": "snoop"}}, {"controller": {"options": ["-v"]}},
                                    {"controller": {"etcd": {"endpoints": ["http://etcd:2379"]}}}, {"userId": 0}])
def test_wrong_values_are_refused(values):
    process = helm("template", "cool", CHART, values=values)
    assert process.returncode and "don't meet the specifications of the schema" in process.stderr, process.stderr


@needs_helm
@every_value
def test_programs_are_given_options_that_they_have(values, tmp_path):
    manifests = chart(values)
    (tmp_path / "racks").write_text(manifests.get("ConfigMap", {"data": {"racks": ""}})["data"]["racks"])
    for container in containers(manifests):
        [program] = container["command"]
        help_text = subprocess.run([os.path.join(testbed.BIN, program), "--help"], capture_output=True, text=True, check=True).stdout
        assert set(options(container)) <= set(re.findall(r"--[a-z-]+", help_text)), program
        # Examples replace the variables, and the mounted file.
        examples = {"$(NODE)": "node1", "$(ADDRESS)": "192.0.2.1", "/etc/cool/racks/racks": str(tmp_path / "racks")}
        arguments = [functools.reduce(lambda word, name: word.replace(name, examples[name]), examples, argument) for argument in container["args"]]
        subprocess.run([os.path.join(testbed.BIN, program), *arguments, "--check-config"], check=True)


@needs_helm
@every_value
def test_the_parts_fit_together(values):
    manifests = chart(values)
    service = manifests["Service"]
    for kind in ("StatefulSet", "DaemonSet"):
        labels = manifests[kind]["spec"]["template"]["metadata"]["labels"]
        assert manifests[kind]["spec"]["selector"]["matchLabels"] == labels
        assert (service["spec"]["selector"] == labels) == (kind == "StatefulSet")
        volumes = {volume["name"] for volume in pod(manifests[kind])["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in manifests[kind]["spec"].get("volumeClaimTemplates", [])}
        for container in pod(manifests[kind])["containers"]:
            assert set(mounts(container).values()) == volumes
    controller, agent = containers(manifests)
    assert os.path.dirname(options(agent)["--socket"]) in mounts(agent)
    for option in ("--state", "--racks", "--lead-by-ca", "--lead-by-cert", "--lead-by-key"):
        path = options(controller).get(option)
        assert path is None or {path, os.path.dirname(path)} & set(mounts(controller)), option


@needs_helm
@every_value
def test_agents_find_every_controller_by_its_name(values):
    manifests = chart(values)
    controllers, service = manifests["StatefulSet"], manifests["Service"]
    assert controllers["spec"]["replicas"] == (2 if values == "pair" else 1)
    # The names of the pods in a stateful set belong to a headless service, which does not distinguish the
    # standby from the leader.
    assert controllers["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    [port] = service["spec"]["ports"]
    names = ["%s-%d" % (controllers["metadata"]["name"], which) for which in range(controllers["spec"]["replicas"])]
    _, agent = containers(manifests)
    assert options(agent)["--controller"] == ",".join("https://%s.%s.ns.svc:%d" % (name, service["metadata"]["name"], port["port"]) for name in names)


@needs_helm
def test_one_controller_keeps_its_state_and_needs_no_etcd():
    [claim] = chart()["StatefulSet"]["spec"]["volumeClaimTemplates"]
    controller, _ = containers(chart())
    assert mounts(controller)[options(controller)["--state"]] == claim["metadata"]["name"]
    assert not [option for option in options(controller) if option.startswith("--lead")]


@needs_helm
def test_two_controllers_use_etcd_on_separate_nodes():
    controllers = chart("pair")["StatefulSet"]
    [rule] = pod(controllers)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == controllers["spec"]["template"]["metadata"]["labels"]
    controller, _ = containers(chart("pair"))
    assert options(controller)["--lead-by"] == ETCD and "--state" not in options(controller)
    folder = os.path.dirname(options(controller)["--lead-by-ca"])
    [secret] = [volume["secret"] for volume in pod(controllers)["volumes"] if volume["name"] == mounts(controller)[folder]]
    assert secret["secretName"] == "cool-etcd"


@needs_helm
@every_value
def test_agents_have_no_capability_but_that_for_raw_sockets(values):
    manifests = chart(values)
    controller, agent = containers(manifests)
    rights = {container["name"]: container["securityContext"] for container in (controller, agent)}
    assert all(context["runAsNonRoot"] and context["capabilities"]["drop"] == ["ALL"] for context in rights.values())
    raw = values == "openflow"
    assert rights["agent"]["capabilities"].get("add") == (["NET_RAW"] if raw else None)
    assert rights["agent"]["allowPrivilegeEscalation"] == raw and not rights["controller"]["allowPrivilegeEscalation"]
    assert pod(manifests["DaemonSet"])["hostNetwork"]


@needs_helm
@every_value
def test_health_checks_use_the_page_that_shows_a_hung_core(values):
    manifests = chart(values)
    for kind in ("StatefulSet", "DaemonSet"):
        [container] = pod(manifests[kind])["containers"]
        for name in ("readinessProbe", "livenessProbe"):
            probe = container[name]["httpGet"]
            # In a network of its own, the pod must serve the page at all of its addresses.
            host = probe["host"] if pod(manifests[kind]).get("hostNetwork") else "0.0.0.0"
            assert "%s:%d" % (host, probe["port"]) == options(container)["--http"]
            # The page itself answers within 5 s.
            assert probe["path"] == "/healthz" and container[name]["timeoutSeconds"] > 5


@needs_helm
def test_the_file_of_racks_reaches_the_controller(tmp_path):
    manifests = chart("racks")
    [(name, text)] = manifests["ConfigMap"]["data"].items()
    assert text == VALUES["racks"]["racks"]
    controller, _ = containers(manifests)
    folder, file = os.path.split(options(controller)["--racks"])
    [volume] = [v for v in pod(manifests["StatefulSet"])["volumes"] if v["name"] == mounts(controller)[folder]]
    assert (file, volume["configMap"]["name"]) == (name, manifests["ConfigMap"]["metadata"]["name"])
    # Another file is another pod, so that the controller reads it.
    other = documents(helm("template", "cool", CHART, values={"racks": "west node1\n"}).stdout)["StatefulSet"]
    assert other["spec"]["template"]["metadata"]["annotations"] != manifests["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]


@needs_helm
def test_every_rank_of_the_job_receives_its_number():
    job = documents(example("job.yaml"))["Job"]
    [rank] = pod(job)["containers"]
    variables = {v["name"]: v.get("value") or v["valueFrom"]["fieldRef"]["fieldPath"] for v in rank["env"]}
    assert job["spec"]["completionMode"] == "Indexed"
    assert int(variables["COOL_SIZE"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert "job-completion-index" in variables["COOL_RANK"] and "controller-uid" in variables["COOL_JOB"]
    check_socket(pod(job), variables)


def check_socket(spec, variables):
    """Checks that ranks of a pod reach the socket of the chart's agents."""
    _, agent = containers(chart())
    [rank], [volume] = spec["containers"], spec["volumes"]
    assert variables["COOL_SOCKET"] == options(agent)["--socket"]
    assert mounts(rank) == {volume["hostPath"]["path"]: volume["name"]} and rank["volumeMounts"][0]["readOnly"]
    assert volume["hostPath"]["path"] in [v["hostPath"]["path"] for v in pod(chart()["DaemonSet"])["volumes"] if "hostPath" in v]
    assert rank["securityContext"]["runAsNonRoot"]


# Reads documents, and fails if one has a value of a wrong type or a field that Kubeflow Trainer does not know,
# or lacks a required one.
CHECK_TRAINER = """
import kubeflow_trainer_api.models as models, sys, yaml
for path in sys.argv[1:]:
    for document in yaml.safe_load_all(open(path)):
        assert document["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
        read = getattr(models, "TrainerV1alpha1" + document["kind"]).from_dict(document).to_dict()
        assert read == document, "%s\\nis read as\\n%s" % (document, read)
        print(document["kind"])
"""


@needs_schemas
def test_the_examples_for_kubeflow_trainer_match_its_types():
    paths = [os.path.join(EXAMPLES, name) for name in ("training-runtime.yaml", "train-job.yaml")]
    command = [os.path.join(TOOLS, "bin/python3"), "-c", CHECK_TRAINER, *paths]
    process = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["ClusterTrainingRuntime", "ClusterTrainingRuntime", "TrainJob"]


def runtimes():
    """Returns the pods of the runtimes for Kubeflow Trainer by their names."""
    found = {}
    for runtime in yaml.safe_load_all(example("training-runtime.yaml")):
        [job] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        # Kubeflow Trainer sets torchrun's variables in the container of this name, in the job of this label.
        assert job["name"] == "node" and "torch" in runtime["spec"]["mlPolicy"]
        assert job["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
        found[runtime["metadata"]["name"]] = job["template"]["spec"]["template"]["spec"]
    return found


def test_training_runtimes_set_variables_that_cool_reads():
    with open(os.path.join(ROOT, "docs/guide/torch.md")) as f:
        documented = set(re.findall(r"`(COOL_[A-Z_]+)`", f.read()))
    for spec in runtimes().values():
        [rank] = spec["containers"]
        assert rank["name"] == "node" and {variable["name"] for variable in rank["env"]} <= documented
    [standalone] = runtimes()["torch-cool-standalone"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in standalone["env"]}
    agent = [os.path.join(testbed.BIN, "cool-nodeagent"), *variables["COOL_AGENT_OPTIONS"].split()]
    required = ["--name", "n", "--interface", "lo", "--controller", "https://127.0.0.1:1"]
    subprocess.run([*agent, *required, "--check-config"], check=True)


@needs_helm
def test_ranks_of_the_training_runtime_reach_the_agents():
    spec = runtimes()["torch-cool"]
    [rank] = spec["containers"]
    check_socket(spec, {variable["name"]: variable["value"] for variable in rank["env"]})


def test_the_train_job_uses_a_training_runtime():
    assert documents(example("train-job.yaml"))["TrainJob"]["spec"]["runtimeRef"]["name"] in runtimes()
