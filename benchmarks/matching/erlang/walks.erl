%% Answers the requests of `trellis bench matching` with the matching algorithms of two Erlang brokers, written from their
%% documentation. It supports `about`, `workload` and `memory`; time is wall-clock time with one scheduler.
%%
%%   rabbitmq   a trie in two ETS tables: edges {{Node, Word}, Child}, and bindings ordered by {Node, Subscriber}. A walk
%%              tries the word, `*`, and `#` with every rest of the topic.
%%   emqx       patterns with wildcards in one ordered ETS table, keyed by their words, wildcards before words: a walk goes
%%              from key to key and skips those with a prefix that does not match. Other patterns are in another table.
-module(walks).
-export([main/1]).

main([Name]) ->
    io:setopts(standard_io, [binary, {encoding, latin1}]),
    %% A heap large enough not to grow while time is taken.
    spawn_opt(fun() -> serve(list_to_atom(Name)) end, [{min_heap_size, 4000000}]),
    receive forever -> ok end.

serve(Name) ->
    case io:get_line("") of
        eof -> halt(0);
        Line ->
            Answer = do(Name, text(Line, "kind"), Line),
            io:put_chars([Answer, "\n"]),
            serve(Name)
    end.

%% The requests have a known form, so their values are found without a JSON parser.
text(Line, Key) ->
    {match, [Found]} = re:run(Line, ["\"", Key, "\": \"([^\"]*)\""], [{capture, all_but_first, binary}]),
    Found.
number(Line, Key) ->
    {match, [Found]} = re:run(Line, ["\"", Key, "\": ([0-9.]+)"], [{capture, all_but_first, binary}]),
    try binary_to_float(Found) catch error:badarg -> float(binary_to_integer(Found)) end.
expected(Line) ->
    {match, Found} = re:run(Line, "\\[([0-9]+), ([0-9]+), ([0-9]+)\\]", [global, {capture, all_but_first, binary}]),
    [[binary_to_integer(Each) || Each <- Row] || Row <- Found].

lines(Line, Key) ->
    {ok, Data} = file:read_file(text(Line, Key)),
    [binary:copy(Each) || Each <- binary:split(Data, <<"\n">>, [global])].

do(_, <<"about">>, _) -> ["{\"version\": \"Erlang/OTP ", erlang:system_info(otp_release), "\"}"];
do(Name, Kind, Line) when Kind =:= <<"workload">>; Kind =:= <<"memory">> ->
    case Name =:= emqx andalso lists:any(fun within/1, lines(Line, "patterns")) of
        true -> "{\"unable\": \"MQTT permits `#` only at the end of a pattern\"}";
        false when Kind =:= <<"memory">> -> memory(Name, Line);
        false -> workload(Name, Line)
    end;
do(_, _, _) -> "{\"unable\": \"walks.erl measures only lookups and memory\"}".

%% True if a `#` is not the last word.
within(Pattern) -> binary:match(Pattern, <<"#.">>) =/= nomatch.

workload(Name, Line) ->
    Patterns = lines(Line, "patterns"),
    Topics = lines(Line, "topics"),
    Limit = round(number(Line, "seconds") * 1.0e9),
    Table = new(Name),
    Numbered = lists:zip(Patterns, lists:seq(0, length(Patterns) - 1)),
    Load = timed(fun() -> [add(Table, P, N) || {P, N} <- Numbered] end) / length(Patterns),
    {Warm, First} = first_pass(Table, Topics, 4 * Limit),
    case wrong(Table, Topics, expected(Line)) of
        [] ->
            Lookup = lookup(Table, Warm, Warm, Limit, 0, 0),
            Further = lines(Line, "further"),
            More = lists:zip(Further, lists:seq(length(Patterns), length(Patterns) + length(Further) - 1)),
            {In, Out} = changes(Table, More, Limit, 0, 0, 0),
            free(Table),
            io_lib:format("{\"lookup\": ~f, \"first\": ~f, \"subscribe\": ~f, \"unsubscribe\": ~f, \"load\": ~f}",
                          [Lookup, First, In, Out, Load]);
        Wrong ->
            free(Table),
            Wrong
    end.

timed(Do) ->
    Began = erlang:monotonic_time(nanosecond),
    Do(),
    erlang:monotonic_time(nanosecond) - Began.

each(_, []) -> ok;
each(Table, [Topic | Topics]) -> match(Table, Topic), each(Table, Topics).

first_pass(Table, Topics, Limit) -> first_pass(Table, Topics, Limit, [], 0).
first_pass(_, [], _, Done, Spent) -> {Done, Spent / length(Done)};
first_pass(_, _, Limit, Done, Spent) when Spent >= Limit, Done =/= [] -> {Done, Spent / length(Done)};
first_pass(Table, Topics, Limit, Done, Spent) ->
    {Chunk, Rest} = lists:split(min(64, length(Topics)), Topics),
    first_pass(Table, Rest, Limit, lists:reverse(Chunk, Done), Spent + timed(fun() -> each(Table, Chunk) end)).

%% Whole passes over small chunks of the topics, until the time is over.
lookup(_, _, _, Limit, Spent, Done) when Spent >= Limit, Done > 0 -> Spent / Done;
lookup(Table, All, [], Limit, Spent, Done) -> lookup(Table, All, All, Limit, Spent, Done);
lookup(Table, All, Topics, Limit, Spent, Done) ->
    {Chunk, Rest} = taken(1000, Topics, []),
    lookup(Table, All, Rest, Limit, Spent + timed(fun() -> each(Table, Chunk) end), Done + length(Chunk)).

taken(0, Rest, Some) -> {Some, Rest};
taken(_, [], Some) -> {Some, []};
taken(Count, [Topic | Rest], Some) -> taken(Count - 1, Rest, [Topic | Some]).

changes(_, More, Limit, In, Out, Times) when In + Out >= Limit, Times > 0 ->
    {In / (Times * length(More)), Out / (Times * length(More))};
changes(Table, More, Limit, In, Out, Times) ->
    Added = timed(fun() -> [add(Table, P, N) || {P, N} <- More] end),
    Removed = timed(fun() -> [remove(Table, P, N) || {P, N} <- More] end),
    changes(Table, More, Limit, In + Added, Out + Removed, Times + 1).

wrong(_, _, []) -> [];
wrong(Table, Topics, [[Count, Found, Digest] | Expected]) ->
    {Some, _} = lists:split(Count, Topics),
    {_, Found1, Sum} = lists:foldl(
        fun(Topic, {Number, Sofar, Sum}) ->
            Row = (Number * 16#9E3779B97F4A7C15) band 16#FFFFFFFFFFFFFFFF,
            Here = lists:usort(match(Table, Topic)),
            Add = lists:sum([Row bxor (((S + 1) * 16#C2B2AE3D27D4EB4F) band 16#FFFFFFFFFFFFFFFF) || S <- Here]),
            {Number + 1, Sofar + length(Here), Sum + Add}
        end, {1, 0, 0}, Some),
    case {Found1, Sum band 16#FFFFFFFFFFFFFFFF} of
        {Found, Digest} -> wrong(Table, Topics, Expected);
        _ -> io_lib:format("{\"wrong\": \"~b topics found ~b subscribers, not ~b\"}", [Count, Found1, Found])
    end.

memory(Name, Line) ->
    Patterns = lines(Line, "patterns"),
    Copies = (60000 + length(Patterns) - 1) div length(Patterns),
    Tables = [new(Name) || _ <- lists:seq(1, Copies)],
    Empty = lists:sum([memory(Table) || Table <- Tables]),
    Numbered = lists:zip(Patterns, lists:seq(0, length(Patterns) - 1)),
    [[add(Table, P, N) || {P, N} <- Numbered] || Table <- Tables],
    Full = lists:sum([memory(Table) || Table <- Tables]),
    [free(Table) || Table <- Tables],
    io_lib:format("{\"octets\": ~f}", [(Full - Empty) / (Copies * length(Patterns))]).

memory({_, A, B}) -> (ets:info(A, memory) + ets:info(B, memory)) * erlang:system_info(wordsize).

free({_, A, B}) -> ets:delete(A), ets:delete(B), erase().

words(Key) -> binary:split(Key, <<".">>, [global]).

new(rabbitmq) -> {rabbitmq, ets:new(edges, [set]), ets:new(bindings, [ordered_set])};
new(emqx) -> {emqx, ets:new(patterns, [ordered_set]), ets:new(topics, [ordered_set])}.

match({rabbitmq, Edges, Bindings}, Topic) -> walk(Edges, Bindings, 0, words(Topic), []);
match({emqx, Patterns, Topics}, Topic) ->
    skip(Patterns, {[], -1}, [word(Word) || Word <- words(Topic)], exact(Topics, Topic, ets:next(Topics, {Topic, -1}), [])).

%% rabbitmq

add({rabbitmq, Edges, Bindings}, Pattern, Subscriber) ->
    ets:insert(Bindings, {{path(Edges, 0, words(Pattern)), Subscriber}});
add({emqx, Patterns, Topics}, Pattern, Subscriber) ->
    {Table, Key} = key(Patterns, Topics, Pattern),
    ets:insert(Table, {{Key, Subscriber}}).

remove({rabbitmq, Edges, Bindings}, Pattern, Subscriber) -> prune(Edges, Bindings, words(Pattern), Subscriber);
remove({emqx, Patterns, Topics}, Pattern, Subscriber) ->
    {Table, Key} = key(Patterns, Topics, Pattern),
    ets:delete(Table, {Key, Subscriber}).

%% An edge's third element is the number of edges that leave its child.
path(_, Node, []) -> Node;
path(Edges, Node, [Word | Words]) ->
    case ets:lookup(Edges, {Node, Word}) of
        [{_, Child, _}] -> path(Edges, Child, Words);
        [] ->
            Child = erlang:unique_integer([positive, monotonic]),
            ets:insert(Edges, {{Node, Word}, Child, 0}),
            case get(Node) of
                undefined -> ok;
                Above -> ets:update_counter(Edges, Above, {3, 1})
            end,
            put(Child, {Node, Word}),
            path(Edges, Child, Words)
    end.

prune(Edges, Bindings, Words, Subscriber) ->
    Node = path(Edges, 0, Words),
    ets:delete(Bindings, {Node, Subscriber}),
    cut(Edges, Bindings, Node).

cut(_, _, 0) -> ok;
cut(Edges, Bindings, Node) ->
    {Above, _} = Edge = get(Node),
    case {ets:lookup(Edges, Edge), ets:next(Bindings, {Node, -1})} of
        {[{_, _, 0}], Next} when not is_tuple(Next); element(1, Next) =/= Node ->
            ets:delete(Edges, Edge),
            erase(Node),
            case get(Above) of
                undefined -> ok;
                Upper -> ets:update_counter(Edges, Upper, {3, -1})
            end,
            cut(Edges, Bindings, Above);
        _ -> ok
    end.

walk(Edges, Bindings, Node, [], Found) ->
    Here = bound(Bindings, Node, ets:next(Bindings, {Node, -1}), Found),
    child(Edges, Bindings, Node, <<"#">>, [], Here);
walk(Edges, Bindings, Node, [Word | Rest] = Words, Found) ->
    One = child(Edges, Bindings, Node, Word, Rest, Found),
    Two = child(Edges, Bindings, Node, <<"*">>, Rest, One),
    case ets:lookup(Edges, {Node, <<"#">>}) of
        [{_, Many, _}] -> rests(Edges, Bindings, Many, Words, Two);
        [] -> Two
    end.

child(Edges, Bindings, Node, Word, Rest, Found) ->
    case ets:lookup(Edges, {Node, Word}) of
        [{_, Child, _}] -> walk(Edges, Bindings, Child, Rest, Found);
        [] -> Found
    end.

rests(Edges, Bindings, Node, [], Found) -> walk(Edges, Bindings, Node, [], Found);
rests(Edges, Bindings, Node, [_ | Rest] = Words, Found) ->
    rests(Edges, Bindings, Node, Rest, walk(Edges, Bindings, Node, Words, Found)).

bound(Bindings, Node, {Node, Subscriber} = Key, Found) -> bound(Bindings, Node, ets:next(Bindings, Key), [Subscriber | Found]);
bound(_, _, _, Found) -> Found.

%% emqx: a key is {Words, Subscriber}. '#' < '+' < any binary, so that more general patterns come first.

word(<<"*">>) -> '+';
word(<<"#">>) -> '#';
word(Word) -> Word.

key(Patterns, Topics, Pattern) ->
    Words = [word(Word) || Word <- words(Pattern)],
    case lists:any(fun is_atom/1, Words) of
        true -> {Patterns, Words};
        false -> {Topics, Pattern}
    end.

exact(Topics, Topic, {Topic, Subscriber} = Key, Found) -> exact(Topics, Topic, ets:next(Topics, Key), [Subscriber | Found]);
exact(_, _, _, Found) -> Found.

%% Continue from a place in the table: the next key matches, or gives the prefix that may match next.
skip(Patterns, Place, Topic, Found) ->
    case ets:next(Patterns, Place) of
        {Words, Subscriber} = Key ->
            case compare(Words, Topic, []) of
                match -> skip(Patterns, Key, Topic, [Subscriber | Found]);
                {seek, Prefix} -> skip(Patterns, {Prefix, -1}, Topic, Found);
                stop -> Found
            end;
        '$end_of_table' -> Found
    end.

%% The place after words that do not match: the smallest later key that may match. Before has the matching words, reversed.
compare(['#'], _, _) -> match;
compare([], [], _) -> match;
compare(['+' | Words], [Word | Topic], Before) -> compare(Words, Topic, [{'+', Word} | Before]);
compare([Word | Words], [Word | Topic], Before) -> compare(Words, Topic, [{Word, Word} | Before]);
compare([], [Next | _], Before) -> {seek, seek(Before, ['#'], Next)};
compare([Word | _], [Next | _], Before) when Word < '+' -> {seek, seek(Before, ['+'], Next)};
compare([Word | _], [Next | _], Before) when Word < Next -> {seek, seek(Before, [Next], Next)};
compare(_, _, Before) -> back(Before).

seek(Before, Last, _) -> lists:reverse([Used || {Used, _} <- Before], Last).

%% No further key with this prefix matches: its last `+` is replaced by the word itself.
back([]) -> stop;
back([{'+', Word} | Before]) -> {seek, lists:reverse([Used || {Used, _} <- Before], [Word])};
back([_ | Before]) -> back(Before).
