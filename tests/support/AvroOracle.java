import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/** Answers lines of JSON about Avro schemas with lines of JSON, as Java's Avro sees them. See avro_oracle.py. */
public class AvroOracle {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;

    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = mapper.readTree(line);
            ObjectNode answer = asked.has("schemas") ? parsed(asked) : read(asked);
            System.out.write((mapper.writeValueAsString(answer) + "\n").getBytes(StandardCharsets.UTF_8));
            System.out.flush();
        }
    }

    private static Schema.Parser parser(JsonNode asked) {
        Schema.Parser parser = new Schema.Parser(NameValidator.STRICT_VALIDATOR);
        parser.setValidateDefaults(true);
        if (asked.has("references")) {
            for (Iterator texts = asked.get("references").elements(); texts.hasNext();) {
                parser.parse(((JsonNode) texts.next()).textValue());
            }
        }
        return parser;
    }

    /** The schemas as Java writes them, or why they are refused, and which equal the first. */
    private static ObjectNode parsed(JsonNode asked) {
        ArrayNode texts = JSON.arrayNode();
        ArrayNode equal = JSON.arrayNode();
        ArrayNode errors = JSON.arrayNode();
        Schema first = null;
        for (Iterator sent = asked.get("schemas").elements(); sent.hasNext();) {
            String text = ((JsonNode) sent.next()).textValue();
            try {
                Schema schema = parser(asked).parse(text);
                first = first == null ? schema : first;
                texts.add(schema.toString());
                equal.add(schema.equals(first));
                errors.addNull();
            } catch (Throwable error) {
                texts.addNull();
                equal.add(false);
                errors.add(String.valueOf(error));
            }
        }
        ObjectNode answer = JSON.objectNode();
        answer.set("texts", texts);
        answer.set("equal", equal);
        answer.set("errors", errors);
        return answer;
    }

    /** What the checker says of a pair, and what its reader makes of data of the writer. */
    private static ObjectNode read(JsonNode asked) {
        ObjectNode answer = JSON.objectNode();
        ArrayNode reasons = answer.putArray("reasons");
        ArrayNode values = answer.putArray("values");
        ArrayNode errors = answer.putArray("errors");
        Schema reader = parser(asked).parse(asked.get("reader").textValue());
        Schema writer = parser(asked).parse(asked.get("writer").textValue());
        try {
            SchemaCompatibility.SchemaCompatibilityResult result =
                SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getResult();
            for (Iterator found = result.getIncompatibilities().iterator(); found.hasNext();) {
                SchemaCompatibility.Incompatibility reason = (SchemaCompatibility.Incompatibility) found.next();
                reasons.add(reason.getType().name());
            }
            answer.put("checked", true);
        } catch (Throwable error) {
            reasons.add(String.valueOf(error));
            answer.put("checked", false);
        }
        for (Iterator data = asked.get("data").elements(); data.hasNext();) {
            byte[] datum = Base64.getDecoder().decode(((JsonNode) data.next()).textValue());
            try {
                BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(datum, null);
                Object value = new GenericDatumReader(writer, reader).read(null, decoder);
                if (!decoder.isEnd()) {
                    throw new IllegalStateException("bytes are left");
                }
                values.add(json(value));
                errors.addNull();
            } catch (Throwable error) {
                values.addNull();
                errors.add(String.valueOf(error));
            }
        }
        return answer;
    }

    private static JsonNode json(Object value) {
        if (value == null) {
            return JSON.nullNode();
        } else if (value instanceof IndexedRecord) {
            IndexedRecord record = (IndexedRecord) value;
            ObjectNode object = JSON.objectNode();
            for (Iterator fields = record.getSchema().getFields().iterator(); fields.hasNext();) {
                Schema.Field field = (Schema.Field) fields.next();
                object.set(field.name(), json(record.get(field.pos())));
            }
            return object;
        } else if (value instanceof Map) {
            ObjectNode object = JSON.objectNode();
            for (Iterator entries = ((Map) value).entrySet().iterator(); entries.hasNext();) {
                Map.Entry entry = (Map.Entry) entries.next();
                object.set(entry.getKey().toString(), json(entry.getValue()));
            }
            return object;
        } else if (value instanceof Collection) {
            ArrayNode array = JSON.arrayNode();
            for (Iterator items = ((Collection) value).iterator(); items.hasNext();) {
                array.add(json(items.next()));
            }
            return array;
        } else if (value instanceof ByteBuffer) {
            return JSON.textNode(StandardCharsets.ISO_8859_1.decode((ByteBuffer) value).toString());
        } else if (value instanceof GenericFixed) {
            return JSON.textNode(new String(((GenericFixed) value).bytes(), StandardCharsets.ISO_8859_1));
        } else if (value instanceof Boolean) {
            return JSON.booleanNode(((Boolean) value).booleanValue());
        } else if (value instanceof Integer || value instanceof Long) {
            return JSON.numberNode(((Number) value).longValue());
        } else if (value instanceof Float || value instanceof Double) {
            double number = ((Number) value).doubleValue();
            return Double.isInfinite(number) ? (JsonNode) JSON.textNode("infinite") : JSON.numberNode(number);
        }
        return JSON.textNode(value.toString());
    }
}
