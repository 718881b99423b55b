"""A grid of Flower in memory: SuperNodes whose apps run when a reply is pulled."""

import itertools

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid

from fedjax_muon.deploy import flower

RUN = 1


class FakeGrid(Grid):
    """SuperNodes in memory, each with an app; a reply is there when it is not held."""

    def __init__(self, apps, config=lambda node: {}):
        self.apps, self.config, self.online = apps, config, set(apps)
        self.held, self.pulled, self.asked = set(), [], []
        self.waiting, self.numbers = {}, itertools.count()
        self.states = {}  # of apps, from one message to the next

    run = property(lambda self: None)

    def set_run(self, run):
        raise NotImplementedError

    create_message = set_run

    def send_and_receive(self, messages, *, timeout=None):
        names = [name for name in self.push_messages(messages) if name]
        return self.pull_messages(names)

    def get_node_ids(self):
        return sorted(self.online)

    def push_messages(self, messages):
        names = []
        for message in messages:
            known = message.metadata.dst_node_id in self.online
            names.append(f"message {next(self.numbers)}" if known else None)
            if known:
                message.metadata.__dict__["_message_id"] = names[-1]
                message.content = sent_over_the_network(message.content)
                self.waiting[names[-1]] = message
        return names

    def pull_messages(self, message_ids):
        self.pulled.append(list(message_ids))
        found = [self.waiting[name] for name in message_ids]
        held = self.held & self.online
        ready = [m for m in found if m.metadata.dst_node_id not in held]
        for message in ready:
            del self.waiting[message.metadata.message_id]
        return [self.reply(message) for message in ready]

    def reply(self, message):
        node = message.metadata.dst_node_id
        if node not in self.online:
            return failure(message, ErrorCode.NODE_UNAVAILABLE, "gone")
        self.asked.append((node, message.metadata.message_type))
        state = self.states.setdefault(node, RecordDict())
        context = Context(RUN, node, self.config(node), state, {})
        try:
            answer = self.apps[node](message, context)
        except (ValueError, OSError) as error:
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return failure(message, code, repr(error))
        answer.content = sent_over_the_network(answer.content)
        return answer


def sent_over_the_network(content):
    return recorddict_from_proto(recorddict_to_proto(content))


def failure(message, code, reason):
    return Message(Error(code=code, reason=reason), reply_to=message)


class Echo:
    """Answers as a node would, without any training."""

    def __init__(self, client, problem=None):
        self.client, self.problem = client, problem

    def answer(self, request):
        if self.problem:
            raise self.problem
        return request + b" from %d" % self.client


def echoes(clients, **problems):
    """A grid of nodes 100, 101, ... with these clients."""
    nodes = [Echo(client, problems.get(f"client{client}")) for client in clients]
    apps = [flower.client_app(lambda context, node=node: node) for node in nodes]
    return FakeGrid(dict(enumerate(apps, 100)))
